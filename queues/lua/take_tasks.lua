-- take_tasks: hand out the next tasks of a worker's models to a replica
-- KEYS[1]  prefix of the pool
-- ARGV[1]  replica
-- ARGV[2]  nonce of this call: grant tokens are nonce:1, nonce:2, …
-- ARGV[3]  grant length until the first renewal, ms
-- ARGV[4]  slots to fill, at most 64 of them now: a caller that gets 64 asks again (0: hand a wake-up for the models on to another replica)
-- ARGV[5]  worker they are for
-- ARGV[6]  its upstream
-- ARGV[7…] models; '*' alone: every model
-- returns  {grants, later}: grants (see grants.lua, describe); which models may start a task in how many ms (wake_or_note). What stays unfilled is recorded as idle for the models.
--          Repeating it returns the same grants while they hold, for five times as long as a grant holds unrenewed.
script('take_tasks', 'allow-oom', function(ARGV)
  local replica, nonce, grant_ms, want = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
  local models = {}
  for i = 7, #ARGV do models[#models + 1] = ARGV[i] end
  if want == 0 then
    local later = {}
    for _, model in ipairs(models) do wake_or_note(model, later) end
    return { {}, later }
  end
  return { take_once(models, want, replica, ARGV[5], ARGV[6], nonce, grant_ms) }
end)
