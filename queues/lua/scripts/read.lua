-- read: return the record of a task, and its place if it waits
-- args      id
-- returns   {known, place, now, top}, and the record's two parts
script('read', 'no-writes', function(ask)
  local task = records.load(ask.id)
  if not task or task.state == 'gone' then return { known = false } end
  local place = task.state == 'queued' and placing.place(task) or nil
  return { known = true, place = place, now = NOW, top = log.top(task) }, cmsgpack.pack(task), task.spec_text
end)
