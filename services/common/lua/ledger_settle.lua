-- Settles a held lease, and ends what is open in a round that it fills. KEYS: leases, expiry times, surplus.
-- ARGV: prefix of the keys of a round, lease id, 'accepted' or 'dropped', reason of the drop, sum of rewards, number
-- of samples, groups per round. Reply: 1 settled, 0 not held.
local prefix, lease_id = ARGV[1], ARGV[2]

local function end_leases(full_round)
  local all = redis.call('HGETALL', KEYS[1])
  for index = 1, #all, 2 do
    local round, position = string.match(all[index + 1], '^(%d+) (%d+) ')
    if round == full_round then
      redis.call('HDEL', KEYS[1], all[index])
      redis.call('ZREM', KEYS[2], all[index])
      redis.call('HINCRBY', prefix .. 'counts:' .. round, 'leased', -1)
      redis.call('ZADD', prefix .. 'returned:' .. round, position, position)
    end
  end
end

local function end_full(round)
  local counts, returned = prefix .. 'counts:' .. round, prefix .. 'returned:' .. round
  redis.call('HSET', counts, 'was_full', 1)
  if tonumber(redis.call('HGET', counts, 'leased')) > 0 then
    end_leases(round)
  end
  for _, position in ipairs(redis.call('ZRANGE', returned, 0, -1)) do
    redis.call('ZADD', KEYS[3], position, position .. ' ' .. round)
    redis.call('HINCRBY', counts, 'surplus', 1)
  end
  redis.call('DEL', returned)
end

local held = redis.call('HGET', KEYS[1], lease_id)
if not held then
  return 0
end
local round, position = string.match(held, '^(%d+) (%d+) ')
local counts = prefix .. 'counts:' .. round
redis.call('HDEL', KEYS[1], lease_id)
redis.call('ZREM', KEYS[2], lease_id)
redis.call('HINCRBY', counts, 'leased', -1)
if ARGV[3] == 'accepted' then
  redis.call('SADD', prefix .. 'accepted:' .. round, position)
else
  redis.call('HINCRBY', counts, 'dropped', 1)
  redis.call('HINCRBY', counts, 'dropped:' .. ARGV[4], 1)
end
redis.call('HINCRBYFLOAT', counts, 'reward_sum', ARGV[5])
redis.call('HINCRBY', counts, 'num_samples', ARGV[6])
if ARGV[3] == 'accepted' and redis.call('SCARD', prefix .. 'accepted:' .. round) >= tonumber(ARGV[7]) then
  end_full(round)
end
return 1
