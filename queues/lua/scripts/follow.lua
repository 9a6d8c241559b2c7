-- follow: register a replica as a reader of a task. From now on the task's events are published to the replica's channel; earlier events, up
-- to `top`, are read from the log in pages.
-- args      id, replica; keeps: the reader keeps the task alive (its linger time starts again); owner {key, user}: if the task belongs to another
--           one, it counts as unknown, and nothing changes
-- returns   {known, place, now, top}, and the record's two parts
script('follow', 'allow-oom', function(ask)
  local task = records.load(ask.id)
  if not task or task.state == 'gone' then return { known = false } end
  if ask.owner and ((task.key_id or '') ~= ask.owner[1] or task.user ~= ask.owner[2]) then return { known = false } end
  local place
  if task.state == 'queued' or task.state == 'executing' then
    local readers = task.readers or ''
    if not string.find(',' .. readers .. ',', ',' .. ask.replica .. ',', 1, true) then
      task.readers = readers == '' and ask.replica or readers .. ',' .. ask.replica
      records.save(task)
      if task.state == 'executing' and task.owner and task.owner ~= ask.replica then -- (a permit has none)
        publish(task.owner, 'reader\n' .. task.id .. '\n' .. whole(task.epoch) .. '\n' .. ask.replica)
      end
    end
    if ask.keeps and task.linger_ms then retrying.linger(task) end
    place = task.state == 'queued' and placing.place(task) or nil
  end
  return { known = true, place = place, now = NOW, top = log.top(task) }, cmsgpack.pack(task), task.spec_text
end)
