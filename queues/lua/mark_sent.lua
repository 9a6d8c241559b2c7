-- mark_sent: the requests of running attempts have left: their windows last from now
-- KEYS[1]  prefix of the pool
-- ARGV[1…] model, task id, epoch of the grant, of each
-- returns  later: which of the models may start a task in how many ms (wake_or_note)
script('mark_sent', 'allow-oom', function(ARGV)
  local models, later = {}, {}
  for i = 1, #ARGV, 3 do
    windows.note(ARGV[i], ARGV[i + 1], ARGV[i + 2])
    models[ARGV[i]] = true
  end
  for model in pairs(models) do wake_or_note(model, later) end
  return later
end)
