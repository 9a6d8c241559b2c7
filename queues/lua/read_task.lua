-- read_task: what is known of a task, and where it stands if it waits
-- KEYS[1]  prefix of the pool
-- ARGV[1]  task id
-- returns  {place, now ms, record as field, value, …} | {} unknown
script('read_task', 'no-writes', function(ARGV)
  local id = ARGV[1]
  local t = load(id)
  if not t or t.state == 'gone' then return {} end
  local reply = { t.state == 'queued' and place(id, t) or NOWHERE, NOW }
  for field, value in pairs(t) do
    reply[#reply + 1] = field
    reply[#reply + 1] = value
  end
  return reply
end)
