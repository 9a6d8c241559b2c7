-- read_log: a part of a task's log, not much larger than asked for, whatever the size of its events
-- args      id; after: event id behind which it begins; nil: at its beginning; held: the log must hold that event; bytes: the page ends with
--           the event that reaches this size; 0: only whether the log holds that event
-- returns   {known: false if the log does not hold the event}, and of each event its id, type and data
script('read_log', 'no-writes', function(ask)
  local log, from = keys.log(ask.id), ask.after and '(' .. ask.after or '-'
  if ask.held and #call('XRANGE', log, ask.after, ask.after) == 0 then return { known = false } end
  local page, size, step = {}, 0, 1
  while size < ask.bytes do
    local found = call('XRANGE', log, from, '+', 'COUNT', whole(step))
    for _, event in ipairs(found) do
      page[#page + 1], page[#page + 2], page[#page + 3] = event[1], event[2][2], event[2][4]
      size = size + #event[2][4] + 64 -- what an event takes in addition to its data, about
      if size >= ask.bytes then return { known = true }, unpack(page) end
      from = '(' .. event[1]
    end
    if #found < step then break end
    -- by the mean size so far, and no more than twice as many at a time: large ones may follow small ones
    step = math.min(math.ceil((ask.bytes - size) * #page / 3 / size), 2 * step, 512)
  end
  return { known = true }, unpack(page)
end)
