-- read_log: return a page of a task's log that is not much larger than requested, whatever the sizes of its events
-- args      id; after: id of the event before the page; nil: the page starts at the beginning; held: the log must have that event; bytes: the page
--           ends with the event that reaches this size; 0: only check that the log has the event
-- returns   {known: false if the log does not have the event}, and of each event its id, type and data
script('read_log', 'no-writes', function(ask)
  local log, from = keys.log(ask.id), ask.after and '(' .. ask.after or '-'
  if ask.held and #call('XRANGE', log, ask.after, ask.after) == 0 then return { known = false } end
  local page, size, step = {}, 0, 1
  while size < ask.bytes do
    local found = call('XRANGE', log, from, '+', 'COUNT', whole(step))
    for _, event in ipairs(found) do
      page[#page + 1], page[#page + 2], page[#page + 3] = event[1], event[2][2], event[2][4]
      size = size + #event[2][4] + 64 -- the estimated overhead of an event
      if size >= ask.bytes then return { known = true }, unpack(page) end
      from = '(' .. event[1]
    end
    if #found < step then break end
    -- estimated from the mean size so far, and at most doubled, since large events may follow small ones
    step = math.min(math.ceil((ask.bytes - size) * #page / 3 / size), 2 * step, 512)
  end
  return { known = true }, unpack(page)
end)
