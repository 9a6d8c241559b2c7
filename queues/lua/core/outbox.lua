-- The outbox: entries that SQL does not have yet. A replica copies them (gateway/records/).
local outbox = {}

-- Record an action for the audit log: actor, address, action, target, and the values before and after it, maps or JSON. `mark`
-- distinguishes the entry from others of this instant. Return its id.
function outbox.action(action)
  if action.noted == false then return '' end -- another pool has the entry
  action.id = US_TEXT .. '-' .. action.mark
  call('XADD', keys.outbox(), '*', 'audit', cmsgpack.pack(action))
  call('HSET', keys.pool(), 'acted', action.id)
  return action.id
end

-- Add a task's usage record: an array of both parts of its record, as they are now. `run`: replaces the scripts' part.
local TWO = '\146' -- begins a packed array of two

function outbox.record(task, run)
  local kind = task.record_as or 'usage'
  if kind == 'nothing' then return end
  call('XADD', keys.outbox(), '*', kind, TWO .. (run and cmsgpack.pack(run) or records.packed(task)) .. task.spec_text)
end

return outbox
