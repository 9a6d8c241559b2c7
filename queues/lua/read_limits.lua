-- read_limits: what is left of a caller's limits
-- KEYS[1]  prefix of the pool
-- ARGV[1]  user
-- ARGV[2]  limits of the key, as submit is given them
-- ARGV[3]  limits of the user, the same
-- returns  {k or u, rate, limit, left, ms until all is back, …}, then for each limit of waiting and running tasks
--          {k or u, waiting or running, limit, left, 0, …}
script('read_limits', 'no-writes', function(ARGV)
  local u, found = ARGV[1], {}
  for _, stands in ipairs(rate_limits_of(u, ARGV[2], ARGV[3])) do
    local subject, limits = stands.subject, stands.limits
    local function tell(name, limit, left, reset)
      for _, value in ipairs({ string.sub(subject, 1, 1), name, limit, math.max(left, 0), reset }) do found[#found + 1] = value end
    end
    for i, rate in ipairs(limits.rates) do
      local tat = stands.tats[i]
      tell(rate.name, rate.limit, left_of(rate, tat), math.max(math.ceil((tat - US) / 1000), 0))
    end
    local waiting, running = limits.waiting, limits.running
    if waiting > 0 then tell('waiting', waiting, waiting - num(call('HGET', keys.waits(), subject)), 0) end
    if running > 0 then tell('running', running, running - call('SCARD', keys.runs(subject)), 0) end
  end
  return found
end)
