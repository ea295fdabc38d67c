//! Tests commands that run the course's own programs on the virtual GPU, where times are the same on every run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use snapbox::{assert_data_eq, str};

fn course(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_course"))
        .args(arguments)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))
        .envs([("NO_COLOR", "1"), ("LAB_TIER", "virtual"), ("VIRTUAL_GPU_COUNT", "2")])
        // The doctor reports every variable that is set.
        .env_remove("LAB_TIMEOUT")
        .output()
        .unwrap()
}

#[track_caller]
fn says(arguments: &[&str]) -> String {
    let output = course(arguments);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

/// A folder for one test, which is removed afterward.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("course_programs_{name}_{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn bench_prints_the_table_writes_it_and_draws_it() {
    let folder = Folder::new("bench");
    let (csv, svg) = (folder.file("table.csv"), folder.file("table.svg"));
    let program = ["--gpus", "2", "--operation", "all-gather", "--types", "float,half", "--from", "1K"];
    let arguments = [&["bench", "--csv", &csv, "--svg", &svg, "--"], &program[..], &["--to", "16K"]].concat();
    assert_data_eq!(
        says(&arguments),
        str![[r#"
tier: virtual
# AllGather on 2 ranks, out of place; times are modeled for the machine `classroom`, where host work takes no time
#       size        count     type   redop   root      time   algbw   busbw  #wrong
#        (B)   (elements)                              (us)  (GB/s)  (GB/s)        
        1024          128    float    none     -1     28.13  0.0364  0.0182       0
        4096          512    float    none     -1     69.56  0.0589  0.0294       0
       16384         2048    float    none     -1    235.25  0.0696  0.0348       0
# all but the last: 14.32 us + size / 0.0742 GB/s; so the last should take 235.25 us. It took 235.25 (+0.0%)
        1024          256     half    none     -1     28.13  0.0364  0.0182       0
        4096         1024     half    none     -1     69.56  0.0589  0.0294       0
       16384         4096     half    none     -1    235.25  0.0696  0.0348       0
# all but the last: 14.32 us + size / 0.0742 GB/s; so the last should take 235.25 us. It took 235.25 (+0.0%)
verdict: every result is right

"#]]
    );
    assert_data_eq!(
        fs::read_to_string(csv).unwrap(),
        str![[r#"
operation,type,world_size,bytes,time_us,algbw_gbps,busbw_gbps,times
all-gather,float,2,1024,28.132,0.036400,0.018200,"modeled for the machine `classroom`, where host work takes no time"
all-gather,float,2,4096,69.556,0.058888,0.029444,"modeled for the machine `classroom`, where host work takes no time"
all-gather,float,2,16384,235.252,0.069644,0.034822,"modeled for the machine `classroom`, where host work takes no time"
all-gather,half,2,1024,28.132,0.036400,0.018200,"modeled for the machine `classroom`, where host work takes no time"
all-gather,half,2,4096,69.556,0.058888,0.029444,"modeled for the machine `classroom`, where host work takes no time"
all-gather,half,2,16384,235.252,0.069644,0.034822,"modeled for the machine `classroom`, where host work takes no time"

"#]]
    );
    let picture = fs::read_to_string(svg).unwrap();
    for words in [
        "<svg",
        "Bus bandwidth of all-gather on 2 ranks",
        "Times: modeled for the machine `classroom`",
        "GB/s",
        "half",
        "float",
    ] {
        assert!(picture.contains(words), "no `{words}` in {picture}");
    }
    assert!(picture.matches("<polyline").count() == 2, "a line for each type in {picture}");
}

#[test]
fn every_operation_is_measured_and_comes_out_right() {
    for operation in
        ["all-to-all", "gather", "scatter", "send-receive", "broadcast", "reduce", "reduce-scatter"]
    {
        let folder = Folder::new(operation);
        let csv = folder.file("table.csv");
        let arguments = ["bench", "--csv", &csv, "--", "--gpus", "2", "--operation", operation, "--to", "4K"];
        let text = says(&arguments);
        assert!(text.ends_with("verdict: every result is right\n"), "{text}");
        assert_eq!(fs::read_to_string(csv).unwrap().matches(operation).count(), 2, "{text}");
    }
}

#[test]
fn bench_that_fails_says_so() {
    let output = course(&["bench", "--", "--from", "2K", "--to", "1K"]);
    assert_eq!(output.status.code(), Some(2));
    assert_data_eq!(
        String::from_utf8(output.stderr).unwrap(),
        str![[r#"
error: there is no size from 2048 to 1024 bytes

"#]]
    );
    let output = course(&["bench", "--csv", "/dev/null/table.csv"]);
    assert!(!output.status.success());
    assert_data_eq!(
        String::from_utf8(output.stderr).unwrap(),
        str![[r#"
error: can't make /dev/null: File exists (os error 17)

"#]]
    );
}

#[test]
fn demo_runs_a_module_s_program_solved() {
    assert_data_eq!(
        says(&["demo", "01", "--gpus", "2"]),
        str![[r#"
tier: virtual
GPU 0:  Virtual H100 80GB HBM3, elements 0..50001
GPU 1:  Virtual H100 80GB HBM3, elements 50001..100003
all:    y = y + 3 · x is right in 100003 elements
group:  2 ranks, and each has heard all of them
verdict: a group of GPUs

"#]]
    );
}

#[test]
fn the_doctor_reports_what_is_installed() {
    assert_data_eq!(
        says(&["doctor"]),
        str![[r#"
...
✓ from 1 rank          virtual: GPUs in software; requested by LAB_TIER
· from 4 ranks         needs 4 GPUs, but the virtual tier has 2 (VIRTUAL_GPU_COUNT)
✓ GPU 0                Virtual H100 80GB HBM3, compute capability 9.0, 80.0 of 80.0 GiB free
✓ GPU 1                Virtual H100 80GB HBM3, compute capability 9.0, 80.0 of 80.0 GiB free
✓ peer access          every GPU can access every other GPU's memory
· LAB_TIER=virtual     the tier that the checks run on
· VIRTUAL_GPU_COUNT=2  the number of GPUs on the virtual tier
...
✓ host memory          [..] GiB free
[..] shared memory        [..] GiB in /dev/shm
...
✓ smoke test           a kernel and an all-reduce on 2 ranks, [..] s

"#]]
    );
}

#[test]
fn overlap_compares_three_ways() {
    assert_data_eq!(
        says(&["overlap", "--compute", "10", "--comm", "50"]),
        str![[r#"
C = 10 ms of compute, M = 50 ms of communication, η = 1
                                                   time speed-up less time
one after the other   C + M                   60.000 ms     1.00      0.0%
perfect overlap       max(C, M)               50.000 ms     1.20     16.7%
with this efficiency  C + M − η · min(C, M)   50.000 ms     1.20     16.7%
The step is bound by communication: some of it stays exposed however well you overlap; send less, or less often.

"#]]
    );
}
