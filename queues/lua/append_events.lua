-- append_events: add events to the logs of running tasks, each task's for itself
-- KEYS[1]  prefix of the pool
-- ARGV[1]  replica (it delivers to its own readers itself)
-- ARGV[2…] of each task: id, epoch of the grant, grant token, sequence number of its first event, 1: the events hold output, after
--          which no retry is possible, number of events, type and data of each
-- returns  for each task 'ok' | 'stale' the grant is not current: stop | a number: the log ends there, refill it or end.
--          Events at or below the top are success: they were appended by an earlier call whose reply was lost.
script('append_events', nil, function(ARGV)
  local replica = ARGV[1]

  local function append(id, epoch, token, seq, output, first, last)
    local key = keys.task(id)
    local state, current, holder, sq, readers, first_output, payload_bytes, ar, probes =
      unpack(call('HMGET', key, 'state', 'epoch', 'grant_token', 'top_seq', 'readers', 'first_output_at', 'payload_bytes',
        'archive', 'probe'))
    if state ~= 'executing' or current ~= epoch or holder ~= token then return 'stale' end
    local top = num(sq)
    if seq > top + 1 then return top end
    local log = keys.log(id)
    for i = first, last, 2 do
      if seq > top then
        local event_id = epoch .. '-' .. whole(seq)
        call('XADD', log, event_id, 'type', ARGV[i], 'data', ARGV[i + 1])
        if readers and readers ~= replica then publish_event(readers, id, event_id, ARGV[i], ARGV[i + 1], replica) end
        top = seq
      end
      seq = seq + 1
    end
    if output == '1' and not first_output then
      call('HSET', key, 'top_seq', whole(top), 'first_output_at', NOW_TEXT)
      drop_payload(id, payload_bytes, ar)
      local woken = probes == '1' and upstreams.answers(id)
      if woken then wake(woken) end
    else
      call('HSET', key, 'top_seq', whole(top))
    end
    return 'ok'
  end

  local outcomes, at = {}, 2
  while at <= #ARGV do
    local first = at + 6
    local behind = first + 2 * tonumber(ARGV[at + 5])
    local seq = tonumber(ARGV[at + 3])
    outcomes[#outcomes + 1] = append(ARGV[at], ARGV[at + 1], ARGV[at + 2], seq, ARGV[at + 4], first, behind - 1)
    at = behind
  end
  return outcomes
end)
