
# `course` is no program: completes what follows `cargo course`, and leaves the rest to Cargo's own completion.
_cargo_course() {
    if ((CURRENT > 2)) && [[ $words[2] == course ]]; then
        shift words
        ((CURRENT--))
        _course
    elif (($+functions[_cargo])); then
        _cargo "$@"
    else
        _default
    fi
}
compdef _cargo_course cargo
