-- record_action: add an action that changes no setting to the audit log
-- args      action: actor, address, mark (8 characters that distinguish it from others of this instant), action, target, before, after
-- returns   {id} of the entry
script('record_action', nil, function(ask) return { id = outbox.action(ask.action) } end)
