
# `course` is no program: completes what follows `cargo course`, and leaves the rest to Cargo's own completion.
if declare -F _comp_load >/dev/null; then
    _comp_load cargo 2>/dev/null
elif declare -F _completion_loader >/dev/null; then
    _completion_loader cargo 2>/dev/null
fi
if [[ $(complete -p cargo 2>/dev/null) =~ ' -F '([^ ]+) && ${BASH_REMATCH[1]} != _cargo_course ]]; then
    _cargo_course_other=${BASH_REMATCH[1]}
fi

_cargo_course() {
    if ((COMP_CWORD >= 2)) && [[ ${COMP_WORDS[1]} == course ]]; then
        local COMP_WORDS=("${COMP_WORDS[@]:1}") COMP_CWORD=$((COMP_CWORD - 1))
        _course course "$2" "$3"
        return
    fi
    if [[ -n ${_cargo_course_other-} ]]; then
        "$_cargo_course_other" "$@"
    fi
    if ((COMP_CWORD == 1)) && [[ course == "$2"* && " ${COMPREPLY[*]-} " != *" course "* ]]; then
        COMPREPLY+=(course)
    fi
}
complete -o bashdefault -o default -F _cargo_course cargo
