-- Takes back expired leases, then leases prompts of the lowest incomplete rounds.
-- KEYS: cursors, leases, expiry times, surplus. ARGV: prefix of the keys of a round, worker, highest round, most
-- prompts, groups per round, most prompts per round, lease length in ms, prompts over-sampled per round.
-- Reply: {lease id, round, position, ...}.
local prefix, worker = ARGV[1], ARGV[2]
local max_round, max_prompts = tonumber(ARGV[3]), tonumber(ARGV[4])
local groups_per_round, max_per_round, over_sampling = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[8])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function number(value)
  return tonumber(value or '0')
end

local function take_back_expired()
  for _, lease_id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', now)) do
    local round, position = string.match(redis.call('HGET', KEYS[2], lease_id), '^(%d+) (%d+) ')
    redis.call('HDEL', KEYS[2], lease_id)
    redis.call('ZREM', KEYS[3], lease_id)
    redis.call('HINCRBY', prefix .. 'counts:' .. round, 'leased', -1)
    redis.call('ZADD', prefix .. 'returned:' .. round, position, position)
  end
end

local leases = {}

local function grant(round, position)
  local lease_id = worker .. '#' .. redis.call('HINCRBY', KEYS[1], 'num_leases', 1)
  redis.call('HSET', KEYS[2], lease_id, string.format('%d %d %s', round, position, worker))
  redis.call('ZADD', KEYS[3], now + tonumber(ARGV[7]), lease_id)
  redis.call('HINCRBY', prefix .. 'counts:' .. string.format('%d', round), 'leased', 1)
  leases[#leases + 1] = {lease_id, round, position}
end

-- The rule of num_prompts_to_start in prompt_ledger.py.
local function num_to_start(accepted, dropped, open, further)
  local missing = groups_per_round - accepted
  if missing <= 0 then
    return 0
  end
  local wanted = math.max(missing, missing + further - dropped)
  return math.max(0, math.min(wanted, max_per_round - accepted - dropped) - open)
end

-- Starts prompts in the round: surplus of earlier rounds, then new positions.
local function start(round, num_prompts)
  for _, entry in ipairs(num_prompts > 0 and redis.call('ZRANGE', KEYS[4], 0, -1) or {}) do
    local position, last_round = string.match(entry, '^(%d+) (%d+)$')
    if num_prompts > 0 and tonumber(last_round) < round then
      redis.call('ZREM', KEYS[4], entry)
      grant(round, tonumber(position))
      num_prompts = num_prompts - 1
    end
  end
  for _ = 1, num_prompts do
    grant(round, redis.call('HINCRBY', KEYS[1], 'num_positions', 1) - 1)
  end
end

-- Leases what the round still needs; true when the round is complete.
local function fill(round)
  local suffix = string.format('%d', round)
  local counts = redis.call('HMGET', prefix .. 'counts:' .. suffix, 'leased', 'dropped', 'was_full')
  local leased, dropped = number(counts[1]), number(counts[2])
  local accepted = redis.call('SCARD', prefix .. 'accepted:' .. suffix)
  local returned = redis.call('ZCARD', prefix .. 'returned:' .. suffix)
  local num_new = num_to_start(accepted, dropped, leased + returned, counts[3] and 0 or over_sampling)
  if leased + returned == 0 and num_new == 0 then
    return true
  end
  local room = max_prompts - #leases
  if returned > 0 and room > 0 then
    local again = redis.call('ZPOPMIN', prefix .. 'returned:' .. suffix, room)
    for index = 1, #again, 2 do
      grant(round, tonumber(again[index]))
    end
  end
  start(round, math.min(num_new, max_prompts - #leases))
  return false
end

take_back_expired()
local first_open = number(redis.call('HGET', KEYS[1], 'first_open'))
local round = first_open
while round <= max_round and #leases < max_prompts do
  local is_complete = fill(round)
  if is_complete and round == first_open then
    first_open = first_open + 1
  end
  round = round + 1
end
redis.call('HSET', KEYS[1], 'first_open', string.format('%d', first_open))
local flat = {}
for _, lease in ipairs(leases) do
  flat[#flat + 1] = lease[1]
  flat[#flat + 1] = lease[2]
  flat[#flat + 1] = lease[3]
end
return flat
