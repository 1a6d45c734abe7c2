-- Reads a round. KEYS: counts, accepted positions, returned positions of the round.
-- Reply: {counts as name, value, ...}, {accepted positions}, number of returned positions.
return {redis.call('HGETALL', KEYS[1]), redis.call('SMEMBERS', KEYS[2]), redis.call('ZCARD', KEYS[3])}
