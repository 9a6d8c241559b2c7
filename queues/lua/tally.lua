-- tally: keep what a replica has counted in longer stretches of time
-- KEYS[1]  prefix of the pool
-- ARGV     of each stretch: its length (ms), when it began, how long it is kept (ms), the name of the replica's part, and the part as a
--          whole, which replaces what was told of it before
-- returns  1
script('tally', nil, function(ARGV)
  for i = 1, #ARGV, 5 do
    local key = keys.rolled(ARGV[i], ARGV[i + 1])
    call('HSET', key, ARGV[i + 3], ARGV[i + 4])
    call('PEXPIRE', key, ARGV[i + 2])
  end
  return 1
end)
