use std::path::PathBuf;

use super::*;

fn canned() -> Result {
    let facts = |name: &str, durable| Facts {
        name: name.to_owned(),
        version: "1.0".to_owned(),
        durable,
        agent: "scripted ACP agent".to_owned(),
        burst: 1_000,
        only: &[],
    };
    let figure = |row: &str, host: &str, durable, values: &[f64]| Figure {
        row: row.to_owned(),
        host: host.to_owned(),
        unit: row_named(row).expect("a row").unit.to_owned(),
        durable,
        values: values.to_vec(),
        note: String::new(),
        absent: None,
    };
    let machine = Machine {
        date: "2026-11-30".to_owned(),
        processor: "Example".to_owned(),
        cores: 2,
        memory_gb: 23,
        kernel: "6.1".to_owned(),
        file_system: "ext4".to_owned(),
        load_before: 4.2,
        isolated: true,
        quick: true,
    };
    let mut kept = figure("kept", "forgetful", Durable::No, &[]);
    kept.absent = Some("the session is not known any more".to_owned());
    let mut replay = figure("replay", "forgetful", Durable::No, &[2_000.0]);
    replay.note = "1,024 frames were there".to_owned();
    Result {
        machine,
        hosts: vec![
            facts(OURS, Durable::Synced),
            facts("forgetful", Durable::No),
            facts("bare copier", Durable::No),
        ],
        left_out: vec![LeftOut {
            name: "absent-peer".to_owned(),
            why: "not installed: no binary".to_owned(),
        }],
        figures: vec![
            figure("start", OURS, Durable::Synced, &[9.0, 11.0, 10.0]),
            figure("start", "forgetful", Durable::No, &[30.0, 28.0, 35.0]),
            figure("start", "bare copier", Durable::No, &[2.0, 2.0, 2.0]),
            figure("frames_1", OURS, Durable::Synced, &[140_000.0, 120_000.0]),
            figure("frames_1", "forgetful", Durable::No, &[150_000.0, 170_000.0]),
            figure("session_rest", OURS, Durable::Synced, &[-0.001]),
            figure("session_rest", "forgetful", Durable::No, &[0.5]),
            replay,
            kept,
        ],
    }
}

#[test]
fn golden_page_of_canned_results() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/bin/peer-bench/report/golden.md");
    let written = page(&canned()).replace(NOTES, "(notes)\n");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &written).expect("write the golden file");
    }
    let golden = std::fs::read_to_string(&path).expect("the golden file; UPDATE_GOLDEN=1 writes it");
    assert_eq!(written, golden);
}

#[test]
fn a_host_that_is_ahead_is_named_and_the_bare_machine_is_not() {
    let found = behind(&canned());
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("forgetful has 160,000 frames/s, Mainstay 130,000 (not durable)"), "{found:?}");
}

#[test]
fn ratios_count_how_many_times_ours_is_better() {
    let less = row_named("start").expect("a row");
    let more = row_named("frames_1").expect("a row");
    assert_eq!(ratio(less, 10.0, 30.0), "3.00 ×");
    assert_eq!(ratio(more, 130_000.0, 160_000.0), "0.81 ×");
    assert_eq!(ratio(less, -0.001, 0.5), "0.50 MB".replace("MB", less.unit));
    assert_eq!(ratio(more, 150.0, 1.0), "150 ×");
}

#[test]
fn lines_for_machines_are_read_back() {
    let result = canned();
    let lines = result.json_lines();
    assert_eq!(lines.len(), 1 + result.hosts.len() + result.left_out.len() + result.figures.len());
    let figures: Vec<Figure> = lines
        .iter()
        .filter_map(|text| match serde_json::from_str::<Line>(text).expect("a line") {
            Line::Figure(figure) => Some(figure),
            _ => None,
        })
        .collect();
    assert_eq!(figures, result.figures);
}
