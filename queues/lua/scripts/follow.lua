-- follow: begin to read a task here: its record and its place; from now on its events are published to this replica's channel. What the log
-- holds until now, up to the record's `top`, is read by pages.
-- args      id, replica; keeps: the reader keeps the task alive (its linger is renewed); owner {key, user}: only for this one; for anybody
--           else it is unknown, and nothing is registered or renewed
-- returns   {known, place, now}, and the record's two parts
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
    end
    if ask.keeps and task.linger_ms then retrying.linger(task) end
    place = task.state == 'queued' and placing.place(task) or nil
  end
  return { known = true, place = place, now = NOW }, cmsgpack.pack(task), task.spec_text
end)
