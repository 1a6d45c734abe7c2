-- Settles a held lease. KEYS: leases, expiry times. ARGV: prefix of the keys of a round, lease id,
-- 'accepted' or 'dropped', reason of the drop, sum of rewards, number of samples. Reply: 1 settled, 0 not held.
local prefix, lease_id = ARGV[1], ARGV[2]
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
return 1
