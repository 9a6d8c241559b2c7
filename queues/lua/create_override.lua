-- create_override: set values of a route, a model or a queue on top of the configuration, and write an audit log entry
-- KEYS[1]  prefix of the pool
-- ARGV[1]  the override, packed: id, and the fields OVERRIDE in keys.py without order, status and created_at; `address` and `mark` of
--          the audit log entry, `shown` its JSON; `check`: only report whether it can be created
-- returns  {'ok', id, the override, packed} | {'conflict', id} the route has another override of a share of its tasks |
--          {'full'} there are too many | {'past', now} it would end before it begins
-- A second call changes nothing.
script('create_override', nil, function(ARGV)
  local override = cmsgpack.unpack(ARGV[1])
  local address, mark, shown, check = override.address, override.mark, override.shown, override.check
  override.address, override.mark, override.shown, override.check = nil, nil, nil, nil
  local known = call('HGET', keys.overrides(), override.id)
  if known then return { 'ok', override.id, known } end
  override.status, override.order, override.created_at = 'active', check and US or overrides.moved(), NOW
  if passed(override['until']) then return { 'past', NOW } end
  if overrides.full() then return { 'full' } end
  local other = overrides.conflict(override)
  if other then return { 'conflict', other } end
  if not check then
    overrides.write(override)
    overrides.audit(override, 'create', override.created_by, address, mark, '{}', shown)
    overrides.apply(override)
  end
  return { 'ok', override.id, cmsgpack.pack(override) }
end)
