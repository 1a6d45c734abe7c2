-- Removes entries. KEYS: stream, epoch. ARGV: caller's epoch ('' when it never claimed), consumer group, entry ids.
-- Reply: 1 done, 0 fenced.
if ARGV[1] ~= '' and redis.call('GET', KEYS[2]) ~= ARGV[1] then
  return 0
end
for index = 3, #ARGV do
  redis.call('XACK', KEYS[1], ARGV[2], ARGV[index])
  redis.call('XDEL', KEYS[1], ARGV[index])
end
return 1
