-- confirm_recorded: forget entries of the outbox that SQL has
-- KEYS[1]  prefix of the pool
-- ARGV     group of those who read it; ids of the entries
-- returns  how many of them were there
script('confirm_recorded', 'allow-oom', function(ARGV)
  local outbox, ids = keys.outbox(), { unpack(ARGV, 2) }
  call('XACK', outbox, ARGV[1], unpack(ids))
  return call('XDEL', outbox, unpack(ids))
end)
