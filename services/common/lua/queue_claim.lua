-- Delivers entries to the one consumer without waiting. KEYS: stream, epoch.
-- ARGV: caller's epoch, consumer group, consumer, most entries, scan cursor ('' when everything pending was seen).
-- Reply: {0} when fenced, else {1, next cursor, {id, bytes, id, bytes, ...}}.
if redis.call('GET', KEYS[2]) ~= ARGV[1] then
  return {0}
end
local cursor, entries = '', {}
if ARGV[5] ~= '' then
  local reply = redis.call('XAUTOCLAIM', KEYS[1], ARGV[2], ARGV[3], 0, ARGV[5], 'COUNT', ARGV[4])
  if reply[1] ~= '0-0' then
    cursor = reply[1]
  end
  entries = reply[2]
else
  local reply = redis.call('XREADGROUP', 'GROUP', ARGV[2], ARGV[3], 'COUNT', ARGV[4], 'STREAMS', KEYS[1], '>')
  if reply then
    entries = reply[1][2]
  end
end
local flat = {}
for _, entry in ipairs(entries) do
  flat[#flat + 1] = entry[1]
  flat[#flat + 1] = entry[2][2]
end
return {1, cursor, flat}
