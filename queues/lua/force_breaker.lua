-- force_breaker: an operator has the breaker of an upstream open or closed, or it goes by itself again; and who did is written down
-- KEYS[1]  prefix of the pool
-- ARGV[1]  model
-- ARGV[2]  upstream; '' of workers that name none
-- ARGV[3]  open | closed | auto: from closed on, also where its provider has it held
-- ARGV[4]  who
-- ARGV[5]  from which address
-- ARGV[6]  8 characters that distinguish the audit log entry from others of this instant
-- ARGV[7]  replica
-- returns  {'ok', id of the audit entry, what it was before} | {'unknown'} no such upstream: no worker names it, and nothing is known of it |
--          {'too_many'} upstreams are known
script('force_breaker', nil, function(ARGV)
  local m, up, state = ARGV[1], ARGV[2], ARGV[3]
  local known = call('EXISTS', keys.upstream(m, up)) == 1
  for _, other in ipairs(upstreams.of(m)) do known = known or other == up end
  if not known then return { 'unknown' } end
  local before = upstreams.force(m, up, state, ARGV[7])
  if not before then return { 'too_many' } end
  call('ZADD', keys.models(), 'GT', NOW_TEXT, m)
  wake(m)
  local target = 'upstream ' .. m .. (up ~= '' and ' ' .. up or '')
  local was, is = cjson.encode({ breaker = before }), cjson.encode({ breaker = state })
  return { 'ok', record_act(US_TEXT .. '-' .. ARGV[6], ARGV[4], ARGV[5], 'update', target, was, is), before }
end)
