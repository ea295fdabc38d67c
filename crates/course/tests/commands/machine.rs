//! Commands for the machine, the student's own programs, and tables.

use std::process::Command;

use snapbox::{assert_data_eq, str};

use crate::student::Student;

#[test]
fn the_doctor_looks_at_the_machine() {
    let student = Student::new("doctor");
    let run = |variables: &[(&str, &str)]| {
        let output = Command::new(env!("CARGO_BIN_EXE_course"))
            .args(["doctor", "--json"])
            .current_dir(&student.root)
            .env("LAB_TIER", "virtual")
            .envs(variables.iter().copied())
            .output()
            .unwrap();
        let diagnoses: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).unwrap();
        (output.status.success(), diagnoses)
    };
    let (is_well, diagnoses) = run(&[("NCCL_TIMEOUT", "30"), ("VIRTUAL_GPU_COUNT", "2")]);
    let of = |what: &str| diagnoses.iter().find(|diagnosis| diagnosis["what"] == what).unwrap();
    assert!(is_well);
    assert_eq!(of("smoke test")["status"], "good");
    assert_eq!(of("NCCL_TIMEOUT=30")["help"], "unset NCCL_TIMEOUT");
    assert!(of("GPU 1")["says"].as_str().unwrap().contains("80.0 GiB free"));

    let (is_well, diagnoses) = run(&[("LAB_TIER", "vritual")]);
    assert!(!is_well);
    let bad = diagnoses.iter().find(|diagnosis| diagnosis["status"] == "bad").unwrap();
    assert!(bad["says"].as_str().unwrap().contains("LAB_TIER=vritual"), "{bad}");
}

#[test]
fn any_program_runs_on_the_virtual_gpu() {
    let student = Student::new("exec");
    let script = "for name in libcuda.so libcuda.so.1 libnccl.so libnccl.so.2; do \
                  test -e ${LD_LIBRARY_PATH%%:*}/$name || exit 7; done; echo $0 $1 $VIRTUAL_GPU_CHECKS \
                  $VIRTUAL_GPU_TOPOLOGY; exit 3";
    let output = student.output(&["exec", "--", "sh", "-c", script, "a program", "--with-a-flag"]);
    assert_eq!(output.status.code(), Some(3), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "a program --with-a-flag warn dgx-h100\n");
    let output = student.output(&["exec", "--checks", "error", "sh", "-c", script]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "sh error dgx-h100\n");
    assert!(student.fails(&["exec", "--", "/no/program"]).contains("can't run /no/program"));
}

#[test]
fn two_tables_are_compared_row_by_row() {
    let student = Student::new("compare");
    let head = "implementation,model_size,d_model,num_layers,world_size,calls_per_step,avg_step_time_ms,speedup_vs_naive\n";
    student.write("a.csv", &format!("{head}naive,small,64,2,4,8,2.0,1.0\nflat,small,64,2,4,1,1.5,1.33\n"));
    student.write("b.csv", &format!("{head}naive,small,64,2,4,8,3.0,1.0\n"));
    assert_data_eq!(
        student.says(&["compare", "a.csv", "b.csv"]),
        str![[r#"
implementation model_size world_size: avg_step_time_ms in a.csv, in b.csv, and their ratio
  naive small 4        2.000        3.000    1.500
rows that are in only one of the tables: 1

"#]]
    );
    student.write("c.csv", "a,b\n1,2\n");
    assert!(
        student
            .fails(&["compare", "a.csv", "c.csv"])
            .contains("c.csv is neither a table from `cargo course bench` nor")
    );
    student.write("d.csv", &format!("{head}naive,small,64,2,4,8,fast,1.0\n"));
    assert!(
        student
            .fails(&["compare", "d.csv", "a.csv"])
            .contains("d.csv, line 2: avg_step_time_ms must be a time above 0")
    );
    student.write("f.csv", head);
    assert!(student.fails(&["compare", "a.csv", "f.csv"]).contains("f.csv has no rows"));
    assert!(student.fails(&["compare", "e.csv", "a.csv"]).contains("can't read e.csv"));
}
