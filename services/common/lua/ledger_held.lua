-- Tells which leases are held. KEYS: leases. ARGV: lease ids. Reply: 1 or 0 for each.
local held = {}
for index, lease_id in ipairs(ARGV) do
  held[index] = redis.call('HEXISTS', KEYS[1], lease_id)
end
return held
