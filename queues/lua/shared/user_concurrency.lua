local running_limits, subject_at_limit, park_at_limit, unpark_next, unpark_for
do
-- How many tasks of a key, or of one user of a delegating key, may run at a time, over all models (limits.lua says what a subject is).
--
-- Who runs as many is not refused but held: each of its flows is parked when its turn comes, and stands in a line of those that are
-- held in that lane. When a task of the subject ends, the first of each such line comes back, but where one that came back before is
-- in line still and has the smaller tag: so the tags of lanes and flows decide which of them continues, as always, and the others
-- are parked again when it is their turn. Whenever one that came back leaves its line, served or not, the next follows while the
-- subject may run more. A held subject runs tasks, so one of them will end; the sweep looks all the same, once a second.
local MAX_LANES = 64 -- in one step: the sweep continues

-- The subjects that a task counts for when it runs: {{subject, how many may}, …}.
function running_limits(t)
  local of_key, of_user = string.match(t.limits, '^r(%d+) (%d+)')
  if not of_key then return {} end
  local key, user = subjects_of(t.user)
  local limits = {}
  if of_user ~= '0' then limits[1] = { user, of_user + 0 } end
  if of_key ~= '0' then limits[#limits + 1] = { key, of_key + 0 } end
  return limits
end

-- The first of them that runs as many as it may; nil: one more may run.
function subject_at_limit(limits)
  for _, of in ipairs(limits) do
    if call('SCARD', keys.runs(of[1])) >= of[2] then return of end
  end
end

-- Park the first user of a lane until a task of the subject `of` (as in `running_limits`) ends.
function park_at_limit(q, m, u, tag, of)
  local subject, limit = of[1], of[2]
  park(q, m, u, tag)
  call('ZADD', keys.at_limit_flows(q, m, subject), tag, u)
  call('HSETNX', keys.at_limit_lanes(subject), q .. ':' .. m, '')
  call('ZADD', keys.at_limit(), limit, subject)
end

-- One more of a subject may run: of each lane where flows of it are held, the first comes back, unless another one is due before it.
-- `here`: a model that the caller wakes.
function unpark_next(subject, here)
  local limit = call('ZSCORE', keys.at_limit(), subject)
  if not limit or call('SCARD', keys.runs(subject)) >= tonumber(limit) then return end
  local lanes = call('HRANDFIELD', keys.at_limit_lanes(subject), MAX_LANES, 'WITHVALUES')
  for i = 1, #lanes, 2 do
    local q, m = string.match(lanes[i], '^([^:]*):(.*)$')
    local u, tag = unpack(call('ZRANGE', keys.at_limit_flows(q, m, subject), '0', '0', 'WITHSCORES'))
    local before = lanes[i + 1] ~= '' and call('ZSCORE', keys.flows(q, m), lanes[i + 1])
    if not before or tonumber(tag) <= tonumber(before) then
      call('HSET', keys.at_limit_lanes(subject), lanes[i], u)
      forget_at_limit(q, m, u)
      flow_comes(q, m, u, keys.parked(q, m))
      if m ~= here then wake(m) end
    end
  end
end

-- The same for all subjects that a running task counts for.
function unpark_for(t, here)
  if not t.limits then return end
  for _, of in ipairs(running_limits(t)) do unpark_next(of[1], here) end
end
end
