
# `course` is no program: completes what follows `cargo course`, and leaves the rest to Cargo's own completion.
function __cargo_course_line
    string match --regex --groups-only '^\s*cargo\s+(course\s.*)$' -- (commandline --current-process --cut-at-cursor)
end
complete --command cargo --no-files --condition 'test -n "$(__cargo_course_line)"' \
    --arguments '(complete --do-complete (__cargo_course_line))'
