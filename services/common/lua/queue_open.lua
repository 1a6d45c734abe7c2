-- Makes the caller the one consumer. KEYS: stream, epoch. ARGV: consumer group. Reply: the caller's epoch.
local created = redis.pcall('XGROUP', 'CREATE', KEYS[1], ARGV[1], '0', 'MKSTREAM')
if created.err and not string.find(created.err, 'BUSYGROUP', 1, true) then
  return created
end
return redis.call('INCR', KEYS[2])
