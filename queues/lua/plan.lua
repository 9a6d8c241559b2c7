-- plan: set down a change of settings that begins now or later, and write down who did
-- KEYS[1]  prefix of the pool
-- ARGV[1]  id of the change
-- ARGV[2…] route | model | queue, its name; what is to hold, as the gateway reads it (JSON); the same of a queue or model as a whole:
--          lines of a setting, a tab, a value ('' = back to what is configured), or '' = it is said of each task
-- ARGV[6…] percent of the tasks; note; who, from which address
-- ARGV[10] when it begins (0: now) and ends (0: not by itself), ms
-- ARGV[12] 8 characters that tell the audit entry from others of this instant; 1 = only look whether it could be; how many may be live
-- returns  {'ok', id, field, value, …} the change (keys.py, CHANGE) | {'busy', id} another one holds then for the same |
--          {'many', how many are live} | {'past', now} it would end before it begins
-- Repeating it changes nothing.
script('plan', nil, function(ARGV)
  local id, at, ends = ARGV[1], num(ARGV[10]), num(ARGV[11])
  if call('EXISTS', keys.change(id)) == 1 then return { 'ok', id, unpack(call('HGETALL', keys.change(id))) } end
  if at < NOW then at = NOW end
  if ends > 0 and ends <= at then return { 'past', NOW } end
  local c = { ki = ARGV[2], na = ARGV[3], wh = ARGV[4], ro = ARGV[6], no = ARGV[7], who = ARGV[8], ad = ARGV[9] }
  c.st, c.ma, c.at, c.un = 'scheduled', NOW_TEXT, whole(at), whole(ends)
  if ARGV[5] ~= '' then c.se = ARGV[5] end
  local other, number = changing.in_the_way(id, c, at, ends > 0 and ends or FOREVER)
  if other then return { 'busy', other } end
  if number >= num(ARGV[14]) then return { 'many', number } end
  if ARGV[13] == '1' then
    if at <= NOW then c.st, c.bg = 'active', NOW_TEXT end
    local fields = {}
    for name, value in pairs(c) do
      fields[#fields + 1], fields[#fields + 2] = name, value
    end
    return { 'ok', id, unpack(fields) }
  end
  changing.keep(id, c)
  local made = '{"of":' .. cjson.encode(c.ki .. ' ' .. c.na) .. ',"change":' .. c.wh .. ',"rollout":' .. c.ro
  made = made .. ',"at":' .. c.at .. ',"until":' .. (ends > 0 and c.un or 'null') .. '}'
  record_act(US_TEXT .. '-' .. ARGV[12], c.who, c.ad, 'create', 'change ' .. id, '{}', made)
  if at <= NOW then changing.begin(id, c, false) end
  return { 'ok', id, unpack(call('HGETALL', keys.change(id))) }
end)
