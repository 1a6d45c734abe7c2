-- Appends a group once. KEYS: stream, ids of the round, finished round bound.
-- ARGV: group id, round, bytes, most entries. Reply: 1 appended, 0 known, -1 full.
if tonumber(ARGV[2]) < tonumber(redis.call('GET', KEYS[3]) or '0') then
  return 0
end
if redis.call('HEXISTS', KEYS[2], ARGV[1]) == 1 then
  return 0
end
if redis.call('XLEN', KEYS[1]) >= tonumber(ARGV[4]) then
  return -1
end
local entry_id = redis.call('XADD', KEYS[1], '*', 'group', ARGV[3])
redis.call('HSET', KEYS[2], ARGV[1], entry_id)
return 1
