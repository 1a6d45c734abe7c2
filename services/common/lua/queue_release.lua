-- Lets a group id be pushed again. KEYS: ids of the round, finished round bound. ARGV: group id, entry id, round.
-- Reply: 1 the id is free, 0 another entry carries it or its round is finished.
if tonumber(ARGV[3]) < tonumber(redis.call('GET', KEYS[2]) or '0') then
  return 0
end
local holder = redis.call('HGET', KEYS[1], ARGV[1])
if not holder then
  return 1
end
if holder ~= ARGV[2] then
  return 0
end
redis.call('HDEL', KEYS[1], ARGV[1])
return 1
