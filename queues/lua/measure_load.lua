-- measure_load: how long a model's queue makes new tasks wait
-- KEYS[1]  prefix of the pool
-- ARGV[1]  model
-- returns  {why it begins nothing: 'paused', 'cooldown', 'no_worker', 'breaker_open', 'throttled' or ''; the wait (ms), or -1: too little is known}
-- The wait is how long it takes, at the pace at which tasks leave now, until all that wait have begun (Little's law): over all lanes
-- that may start something, as the next task may go into any of them.
script('measure_load', 'no-writes', function(ARGV)
  local m = ARGV[1]
  local s = call('HMGET', keys.model(m), unpack(ALL_RULES))
  local why = ''
  if s[3] == '1' then why = 'paused'
  elseif num(s[4]) > NOW then why = 'cooldown'
  elseif not is_offered(m) then why = 'no_worker'
  elseif s[9] == '2' and upstreams.blocked_until(m) > 0 then
    local _, kind = upstreams.blocked_until(m)
    why = kind == 'cooldown' and 'cooldown' or 'breaker_open'
  elseif paced_until(m, s, 1) > 0 then why = 'throttled' end

  local waiting, pace, unknown = 0, 0, false
  for _, q in ipairs(call('ZRANGE', keys.lanes(m), '0', '-1')) do
    local lane = call('HMGET', keys.model(m), 'waiting:' .. q, 'drain:' .. q, 'mean_ms', 'mean_output')
    if not blocked_by(q, m, s[3], s[9]) then
      if is_learned(lane[2], lane[3], num(s[5]), num(s[6]), lane[4], s[10]) then
        waiting = waiting + num(lane[1])
        pace = pace + 1 / math.max(interval_of(q, m, lane[2], lane[3], true), 0.001)
      else
        unknown = true
      end
    end
  end
  if pace == 0 and unknown then return { why, -1 } end
  return { why, pace > 0 and math.ceil(waiting / pace) or 0 }
end)
