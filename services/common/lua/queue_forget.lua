-- Raises the bound of finished rounds and frees their ids. KEYS: finished round bound.
-- ARGV: new bound, prefix of the keys that hold a round's ids. Reply: 1.
local bound = tonumber(redis.call('GET', KEYS[1]) or '0')
local new_bound = tonumber(ARGV[1])
if new_bound <= bound then
  return 1
end
for round = bound, new_bound - 1 do
  redis.call('UNLINK', ARGV[2] .. string.format('%d', round))
end
redis.call('SET', KEYS[1], string.format('%d', new_bound))
return 1
