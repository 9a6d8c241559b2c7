-- set_settings: set settings of a queue or a model for good, in a promoted override, and write an audit log entry
-- KEYS[1]  prefix of the pool
-- ARGV[1]  packed: id of the override, target (queue | model), name, who, address, mark; settings: setting -> value, '' = as configured
-- returns  {'ok', id of the audit entry, before, after} JSON objects of the values before and after | {'unknown'} queue | {'full'} there
--          are too many overrides
-- What it names, no other override of the queue or model sets any more.
script('set_settings', nil, function(ARGV)
  local asked = cmsgpack.unpack(ARGV[1])
  if asked.target == 'queue' and call('SISMEMBER', keys.queues(), asked.name) == 0 then return { 'unknown' } end
  local settings = {}
  for setting, value in pairs(asked.settings) do
    if value ~= '' then settings[setting] = value end
  end
  if next(settings) and overrides.full() then return { 'full' } end
  local override = { id = asked.id, target = asked.target, name = asked.name, settings = asked.settings, values = {} }
  overrides.supersede(override, false)
  if next(settings) then
    override.status, override.percent, override['until'], override.settings = 'promoted', 100, 0, settings
    override.order, override.created_at, override.created_by = overrides.moved(), NOW, asked.who
    overrides.write(override)
    override.settings = asked.settings
  end
  local before, after = overrides.apply(override)
  local target = asked.target .. ' ' .. asked.name
  return { 'ok', record_act(US_TEXT .. '-' .. asked.mark, asked.who, asked.address, 'update', target, before, after), before, after }
end)
