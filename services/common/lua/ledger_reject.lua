-- Reopens an accepted position. KEYS: cursors. ARGV: prefix of the keys of a round, round, position, reason.
-- Reply: 1 reopened, 0 it was not accepted.
local prefix, round, position = ARGV[1], ARGV[2], ARGV[3]
if redis.call('SREM', prefix .. 'accepted:' .. round, position) == 0 then
  return 0
end
redis.call('ZADD', prefix .. 'returned:' .. round, position, position)
redis.call('HINCRBY', prefix .. 'counts:' .. round, 'rejected:' .. ARGV[4], 1)
if tonumber(round) < tonumber(redis.call('HGET', KEYS[1], 'first_open') or '0') then
  redis.call('HSET', KEYS[1], 'first_open', round)
end
return 1
