-- take: hand out the next tasks of a worker's models to a replica
-- args      replica, worker, upstream, nonce of this call (grant tokens are nonce:1, nonce:2, …), grant_ms until the first renewal; want:
--           slots to fill, at most 64 of them now (0: hand a wake-up for the models on to another replica); models ({'*'}: every model)
-- returns   {later}, and grants. What stays unfilled is recorded as idle for the models.
-- Repeating it returns the same grants while they hold, for five times as long as a grant holds unrenewed.
script('take', 'allow-oom', function(ask)
  if ask.want == 0 then
    local later = {}
    for _, name in ipairs(ask.models) do waking.wake(name, later) end
    return { later = later }
  end
  local grants, later = granting.take_once(ask)
  return { later = later }, unpack(grants)
end)
