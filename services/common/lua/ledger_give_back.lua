-- Returns prompts unspent. KEYS: leases, expiry times. ARGV: prefix of the keys of a round,
-- worker whose leases to return ('' for none), then lease ids. Reply: number returned.
local prefix, worker = ARGV[1], ARGV[2]
local lease_ids = {}
for index = 3, #ARGV do
  lease_ids[#lease_ids + 1] = ARGV[index]
end
if worker ~= '' then
  local all = redis.call('HGETALL', KEYS[1])
  for index = 1, #all, 2 do
    if string.match(all[index + 1], '^%d+ %d+ (.*)$') == worker then
      lease_ids[#lease_ids + 1] = all[index]
    end
  end
end
local num_returned = 0
for _, lease_id in ipairs(lease_ids) do
  local held = redis.call('HGET', KEYS[1], lease_id)
  if held then
    local round, position = string.match(held, '^(%d+) (%d+) ')
    redis.call('HDEL', KEYS[1], lease_id)
    redis.call('ZREM', KEYS[2], lease_id)
    redis.call('HINCRBY', prefix .. 'counts:' .. round, 'leased', -1)
    redis.call('ZADD', prefix .. 'returned:' .. round, position, position)
    num_returned = num_returned + 1
  end
end
return num_returned
