-- update_override: change an override's share or end, promote it or roll it back, and write an audit log entry
-- KEYS[1]  prefix of the pool
-- ARGV[1]  packed: id, action (update | promote | rollback), who, address, mark; of an update percent, until (ms, 0: no end), or one of both
-- returns  {'ok', id, the override, packed} | {'unknown'} there is none | {'promoted'} it has neither share nor end |
--          {'conflict', id} the route has another override of a share of its tasks | {'past', now} that time is over
-- Updating to the values that it has, and promoting a promoted override, change nothing.
script('update_override', nil, function(ARGV)
  local asked = cmsgpack.unpack(ARGV[1])
  local override = overrides.load(asked.id)
  if not override then return { 'unknown' } end
  local function audit(before, after)
    return overrides.audit(override, asked.action, asked.who, asked.address, asked.mark, cjson.encode(before), cjson.encode(after))
  end
  if asked.action == 'rollback' then
    audit({ status = override.status }, { status = 'rolled_back' })
    overrides.remove(override.id)
    overrides.apply(override)
  elseif asked.action == 'promote' then
    if override.status ~= 'promoted' then
      audit({ status = 'active', percent = override.percent }, { status = 'promoted', percent = 100 })
      override.status, override.percent, override['until'], override.order = 'promoted', 100, 0, overrides.moved()
      overrides.write(override)
      overrides.supersede(override, true)
      overrides.apply(override)
    end
  else
    if override.status == 'promoted' then return { 'promoted' } end
    if passed(asked['until']) then return { 'past', NOW } end
    local before = { percent = override.percent, ['until'] = override['until'] }
    override.percent, override['until'] = asked.percent or override.percent, asked['until'] or override['until']
    local other = overrides.conflict(override)
    if other then return { 'conflict', other } end
    if override.percent ~= before.percent or override['until'] ~= before['until'] then
      audit(before, { percent = override.percent, ['until'] = override['until'] })
      overrides.write(override)
    end
  end
  return { 'ok', override.id, cmsgpack.pack(override) }
end)
