-- confirm_recorded: forget entries of the outbox that SQL has
-- args      group of those who read it; ids of the entries
-- returns   {gone}: how many of them were there
script('confirm_recorded', 'allow-oom', function(ask)
  call('XACK', keys.outbox(), ask.group, unpack(ask.ids))
  return { gone = call('XDEL', keys.outbox(), unpack(ask.ids)) }
end)
