-- Reopens an accepted position, or one whose group is queued and whose lease is not settled yet.
-- KEYS: cursors, leases, expiry times. ARGV: prefix of the keys of a round, round, position, reason.
-- Reply: 1 reopened, 0 it was neither accepted nor leased.
local prefix, round, position = ARGV[1], ARGV[2], ARGV[3]

local function end_lease()
  local all = redis.call('HGETALL', KEYS[2])
  for index = 1, #all, 2 do
    if string.match(all[index + 1], '^(%d+ %d+) ') == round .. ' ' .. position then
      redis.call('HDEL', KEYS[2], all[index])
      redis.call('ZREM', KEYS[3], all[index])
      redis.call('HINCRBY', prefix .. 'counts:' .. round, 'leased', -1)
      return true
    end
  end
  return false
end

if redis.call('SREM', prefix .. 'accepted:' .. round, position) == 0 and not end_lease() then
  return 0
end
redis.call('ZADD', prefix .. 'returned:' .. round, position, position)
redis.call('HINCRBY', prefix .. 'counts:' .. round, 'rejected:' .. ARGV[4], 1)
if tonumber(round) < tonumber(redis.call('HGET', KEYS[1], 'first_open') or '0') then
  redis.call('HSET', KEYS[1], 'first_open', round)
end
return 1
