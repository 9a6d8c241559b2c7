-- alter: give a change of settings another share or end, or take it back; and write down who did
-- KEYS[1]  prefix of the pool
-- ARGV[1]  id of the change
-- ARGV[2]  set | take_back
-- ARGV[3…] percent of the tasks and when it ends (ms, 0: not by itself); '' = as it is
-- ARGV[5…] who, from which address, 8 characters that tell the audit entry from others of this instant
-- returns  {'ok', id, field, value, …} the change now (keys.py, CHANGE) | {'gone'} there is none | {'over', state} it has ended |
--          {'busy', id} another one holds then for the same | {'past', now} that time is over
-- Taking back what is taken back, and setting what is so already, changes nothing.
script('alter', nil, function(ARGV)
  local id, take_back = ARGV[1], ARGV[2] == 'take_back'
  local c = changing.load(id)
  if not c then return { 'gone' } end
  local function answer() return { 'ok', id, unpack(call('HGETALL', keys.change(id))) } end
  local function note(before, after)
    record_act(US_TEXT .. '-' .. ARGV[7], ARGV[5], ARGV[6], ARGV[2], 'change ' .. id, cjson.encode(before), cjson.encode(after))
  end
  if take_back and c.st == 'taken_back' then return answer() end
  if c.st ~= 'scheduled' and c.st ~= 'active' then return { 'over', c.st } end
  if take_back then
    note({ state = c.st }, { state = 'taken_back' })
    c.who, c.ad = ARGV[5], ARGV[6]
    changing.stop(id, c, 'taken_back')
    return answer()
  end
  local before, after, changed = {}, {}, false
  if ARGV[3] ~= '' and ARGV[3] ~= c.ro then
    before.rollout, after.rollout, changed = num(c.ro), num(ARGV[3]), true
    c.ro = ARGV[3]
  end
  if ARGV[4] ~= '' and num(ARGV[4]) ~= num(c.un) then
    local from, ends = c.st == 'active' and NOW or math.max(num(c.at), NOW), num(ARGV[4])
    if ends > 0 and ends <= from then return { 'past', NOW } end
    local other = changing.in_the_way(id, c, from, ends > 0 and ends or FOREVER)
    if other then return { 'busy', other } end
    before['until'], after['until'], changed = num(c.un), ends, true
    c.un = whole(ends)
  end
  if changed then
    note(before, after)
    changing.keep(id, c)
  end
  return answer()
end)
