//! `NCCL_DEBUG`: the lines that the real library also prints, for programs that count them.

use lab::Check;

use crate::raw::{Arguments, Function, address, floats, in_group, raw_ranks};

pub(crate) fn checks() -> Vec<Check> {
    vec![
        Check::new("nccl_log::lines_of_calls_in_a_file_of_the_process", calls),
        Check::new("nccl_log::the_default_subsystems", defaults),
        Check::new("nccl_log::warnings_alone", warnings),
    ]
}

/// Runs two ranks with these variables, and returns what they print.
fn printed(switches: &[(&str, &str)]) -> String {
    let file = std::env::temp_dir().join(format!("nccl_log_{}", std::process::id()));
    // SAFETY: no other thread is running yet, and NCCL has not read the variables.
    unsafe {
        std::env::set_var("NCCL_DEBUG_FILE", std::env::temp_dir().join("nccl_log_%p"));
        switches.iter().for_each(|(name, value)| std::env::set_var(name, value));
    }
    raw_ranks(0, 2, |rank| {
        let buffer = rank.stream.clone_htod(&[1.0f32; 8]).unwrap();
        let at = address(&buffer);
        rank.call(Function::AllReduce, at, at, floats(8)).unwrap();
        rank.call(Function::Broadcast, at, at, Arguments { root: 1, ..floats(0) }).unwrap();
        let peer = Arguments { root: 1 - rank.rank as i32, ..floats(4) };
        in_group(|| {
            rank.call(Function::Send, at, 0, peer).unwrap();
            rank.call(Function::Recv, 0, at + 16, peer).unwrap();
        })
        .unwrap();
        rank.call(Function::AllReduce, 0, at, floats(8)).unwrap_err();
        rank.stream.synchronize().unwrap();
    });
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(file).unwrap();
    text
}

fn lines<'a>(text: &'a str, words: &[&str]) -> Vec<&'a str> {
    text.lines().filter(|line| words.iter().all(|word| line.contains(word))).collect()
}

fn calls() -> anyhow::Result<()> {
    let text = printed(&[("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", "INIT,COLL")]);
    let pid = format!(":{}:", std::process::id());
    let reductions = lines(
        &text,
        &[&pid, "NCCL INFO AllReduce: opCount 0 sendbuff 0x", "count 8 datatype 7 op 0 root 0", "[nranks=2]"],
    );
    assert_eq!(reductions.len(), 2, "{text}");
    assert!(reductions.iter().any(|line| line.contains(" [1] NCCL INFO")), "{text}");
    assert_eq!(lines(&text, &["Broadcast: opCount 1", "count 0 datatype 7 op 0 root 1"]).len(), 2, "{text}");
    assert_eq!(lines(&text, &["Send: opCount 1 sendbuff (nil) recvbuff 0x", "count 4"]).len(), 2, "{text}");
    assert_eq!(lines(&text, &["Recv:", "root 0"]).len(), 1, "{text}");
    assert_eq!(
        lines(&text, &["rank 1 nRanks 2 nNodes 1 localRanks 2 localRank 1 MNNVL 0"]).len(),
        1,
        "{text}"
    );
    assert_eq!(lines(&text, &["ncclCommInitRank comm 0x", "nranks 2", "Init COMPLETE"]).len(), 2, "{text}");
    assert_eq!(lines(&text, &["NCCL INFO NCCL version 2.30.7"]).len(), 1, "{text}");
    assert_eq!(lines(&text, &["NCCL WARN", "(sendbuff)"]).len(), 2, "{text}");
    Ok(())
}

fn defaults() -> anyhow::Result<()> {
    let text = printed(&[("NCCL_DEBUG", "info")]);
    assert_eq!(lines(&text, &["Init COMPLETE"]).len(), 2, "{text}");
    assert!(lines(&text, &["AllReduce: opCount"]).is_empty(), "{text}");
    Ok(())
}

fn warnings() -> anyhow::Result<()> {
    let text = printed(&[("NCCL_DEBUG", "WARN"), ("NCCL_DEBUG_SUBSYS", "ALL")]);
    assert!(lines(&text, &["NCCL INFO"]).is_empty(), "{text}");
    assert_eq!(lines(&text, &["NCCL WARN"]).len(), 2, "{text}");
    assert_eq!(lines(&text, &["NCCL version 2.30.7+cuda12.9"]).len(), 1, "{text}");
    Ok(())
}
