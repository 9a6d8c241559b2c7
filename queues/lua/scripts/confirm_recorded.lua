-- confirm_recorded: delete entries of the outbox that SQL has
-- args      group: consumer group of the outbox; ids of the entries
-- returns   {gone}: how many entries were deleted
script('confirm_recorded', 'allow-oom', function(ask)
  call('XACK', keys.outbox(), ask.group, unpack(ask.ids))
  return { gone = call('XDEL', keys.outbox(), unpack(ask.ids)) }
end)
