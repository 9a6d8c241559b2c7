-- read_log: a part of a task's log, not much larger than asked for, whatever the size of its events
-- KEYS[1]  prefix of the pool
-- ARGV[1]  task id
-- ARGV[2]  event id behind which it begins, or '-' for the beginning of the log
-- ARGV[3]  1: the log must hold that event
-- ARGV[4]  bytes: the page ends with the event that reaches this size; 0: only whether the log holds that event
-- returns  {events} | {} the log does not hold the event
script('read_log', 'no-writes', function(ARGV)
  local log, from, most = keys.log(ARGV[1]), '-', tonumber(ARGV[4])
  if ARGV[2] ~= '-' then
    if ARGV[3] == '1' and #call('XRANGE', log, ARGV[2], ARGV[2]) == 0 then return {} end
    from = '(' .. ARGV[2]
  end
  local page, size, step = {}, 0, 1
  while size < most do
    local found = call('XRANGE', log, from, '+', 'COUNT', step)
    for _, event in ipairs(found) do
      page[#page + 1] = event
      size = size + #event[2][4] + 64 -- what an event takes in addition to its data, about
      if size >= most then return { page } end
      from = '(' .. event[1]
    end
    if #found < step then break end
    -- by the mean size so far, and no more than twice as many at a time: large ones may follow small ones
    step = math.min(math.ceil((most - size) * #page / size), 2 * step, 512)
  end
  return { page }
end)
