-- publish_progress: publish the progress of a running task to its readers, and store the last one for new readers
-- args      replica (it delivers to its own readers itself); id, epoch and token of the grant; kind of the event, which is not logged
-- strings   its data
-- returns   {current}: false: the grant is not current
script('publish_progress', nil, function(ask, args)
  local task, data = records.load(ask.id), args[2]
  if not task or task.state ~= 'executing' or task.epoch ~= ask.epoch or task.token ~= ask.token then return { current = false } end
  task.progress = whole(task.epoch) .. '\n' .. data
  records.save(task)
  for reader in string.gmatch(task.readers or '', '[^,]+') do
    if reader ~= ask.replica then publish(reader, 'ephemeral\n' .. ask.id .. '\n' .. ask.kind .. '\n' .. data) end
  end
  return { current = true }
end)
