-- Chains: several stages under one task id (chains.py). The record of the chain's task names the stage that it is in (`stage`: its number,
-- the part or -, its name). In a stage of several parts that task stands in no line, and `parts` says how many they are; each part is a
-- task of its own, whose record names the chain (`chain`). What belongs to the chain as a whole lies in a hash of its own (keys.py, CHAIN),
-- whose `stored_bytes` count as stored until the chain ends.
local chains = {}

-- The task id of a part; as in chains.py.
function chains.part_id(id, number, part) return string.format('%s.%s.%02d', id, number, part) end

-- Number, part (or -) and name of a field `stage`.
function chains.stage_of(sg) return string.match(sg, '^(%d+) (%S+) (.*)$') end

-- Fields of an event that name the stage of a task.
function chains.in_event(sg)
  local number, _, name = chains.stage_of(sg)
  return ',"stage":' .. cjson.encode(name) .. ',"index":' .. whole(number + 1) -- from 1, as in events `stage`
end

-- The event that ends a task, of these fields and the stage in which its chain failed.
function chains.end_data(id, t, state, rest)
  if t.stage and state == 'failed' and not string.find(rest, '"failedStage":', 1, true) then
    local _, _, name = chains.stage_of(t.stage)
    rest = rest .. ',"failedStage":' .. cjson.encode(name)
  end
  return event_data(id, rest)
end

-- Count that `after` bytes are stored for a user instead of `before`.
function chains.count_bytes(u, before, after)
  if before == after then return end
  call('HINCRBY', keys.pool(), 'bytes', whole(after - before))
  local large = (after >= LARGE_BODY and after or 0) - (before >= LARGE_BODY and before or 0)
  if large ~= 0 and call('HINCRBY', keys.bulk(), u, whole(large)) <= 0 then call('HDEL', keys.bulk(), u) end
end

-- Put into an entry of the outbox (records.lua) what differs where its task is a chain's, or a part: `done`: of a stage that is
-- completed, while the chain continues. Returns the chain, the chain of a part, the most that the stage or part was to cost, and whether
-- there is nothing to record but what was paid, as the chain ended while parts ran, and each part has its own record; and when the
-- chain entered the stage, if it is not the first.
function chains.fill(entry, id, t, done)
  if t.attempts_before and entry[14] then entry[14] = whole(entry[14] - t.attempts_before) end
  if done then entry[1], entry[5], entry[6] = NOW_TEXT, 'completed', '' end
  return t.chain or id, t.chain, t.max_cost, t.parts and true, t.stage_entered_at
end

-- Add to what a chain has cost; returns all of it.
function chains.spend(id, cost)
  if cost == 0 then return num(call('HGET', keys.chain(id), 'spent')) end
  return call('HINCRBY', keys.chain(id), 'spent', whole(cost))
end
