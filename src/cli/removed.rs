//! Commands and flags of earlier versions: each is answered with the replacement.

/// A command or flag as a user types it, and what to use instead.
const REMOVED: &[(&str, &str)] = &[
    (
        "inspect heads --annotations",
        "sum the weights of your own pairs of tokens: `tinderbox inspect attention RUN --prompt TEXT --format json` \
         prints all of them",
    ),
    ("bench attention", "`cargo bench -p tinderbox-kernels -- attention_by_length` in the repository measures it"),
    (
        "init --search",
        "`tinderbox sweep my.toml --space KEY=VALUES --budget TIME` searches around the config that `init` makes",
    ),
    ("cache size", "`tinderbox cache` says it last; with --json it is `bytes`"),
    ("bench machine", "`cargo bench -p tinderbox-kernels --bench machine` in the repository measures it"),
    ("sweep --method halving", SWEEP_METHODS),
    ("sweep --method asha", SWEEP_METHODS),
    ("plan --network", "--ranks alone shows the bytes that each machine exchanges; divide them by your bandwidth"),
];

const SWEEP_METHODS: &str = "leave it out: the default, `--method random`, trains every setting for the same time";

/// The error for arguments that clap refused: what to use in place of a removed command or flag; `None` if they name
/// none.
pub(super) fn replacement(args: &[String]) -> Option<String> {
    let separate = |arg: &String| match arg.split_once('=') {
        Some((flag, value)) if flag.starts_with("--") => vec![flag.to_owned(), value.to_owned()],
        _ => vec![arg.clone()],
    };
    let args: Vec<String> = args.iter().flat_map(separate).collect();
    let is_typed = |old: &str| {
        let words: Vec<&str> = old.split(' ').collect();
        let (command, flag) =
            words.split_at(words.iter().position(|word| word.starts_with('-')).unwrap_or(words.len()));
        let has_flag = || flag.is_empty() || args.windows(flag.len()).any(|args| args == flag);
        args.len() >= command.len() && args.iter().zip(command).all(|(arg, word)| arg == word) && has_flag()
    };
    let (old, instead) = REMOVED.iter().find(|(old, _)| is_typed(old))?;
    Some(format!("error: `{old}` no longer exists\n  hint: {instead}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removed_flags_are_found_behind_their_command() {
        let ask = |line: &str| replacement(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        for (line, removed) in [
            ("inspect heads runs/a --annotations f", "inspect heads --annotations"),
            ("inspect heads --annotations=f runs/a", "inspect heads --annotations"),
            ("bench attention --rounds 3", "bench attention"),
            ("bench machine", "bench machine"),
            ("init --from-text a.txt --search 30m", "init --search"),
            ("cache size --json", "cache size"),
            ("sweep a.toml --method halving", "sweep --method halving"),
            ("sweep a.toml --method=asha", "sweep --method asha"),
            ("plan a.toml --network 1Gbit", "plan --network"),
        ] {
            let expected = format!("error: `{removed}` no longer exists\n  hint: ");
            assert!(ask(line).is_some_and(|text| text.starts_with(&expected)), "{line}");
        }
        for line in ["inspect", "inspect heads runs/a", "inspect map --annotations f"] {
            assert_eq!(ask(line), None, "{line}");
        }
    }
}
