-- take: grant the next tasks of a worker's models to a replica
-- args      replica, worker, upstream, nonce of this call (grant tokens are nonce:1, nonce:2, …), grant_ms until the first renewal; want: slots
--           to fill, at most 64 per call (0: pass a wake-up for the models to another replica); models ({'*'}: every model)
-- returns   {later}, and grants. If slots stay free, the replica is remembered as idle for the models.
-- A repeated call returns the same grants while they are valid, for five times as long as a grant lasts unrenewed.
script('take', 'allow-oom', function(ask)
  if ask.want == 0 then
    local later = {}
    for _, name in ipairs(ask.models) do waking.wake(name, later) end
    return { later = later }
  end
  local grants, later = granting.take_once(ask)
  return { later = later }, unpack(grants)
end)
