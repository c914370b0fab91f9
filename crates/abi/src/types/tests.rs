//! Compares every structure and constant with the installed headers, as a C compiler sees them.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::{env, fs};

use super::{Layout, cm, device, object, values, work};

const HEADERS: &str = "/usr/include/infiniband/verbs.h";
const CM_HEADERS: &str = "/usr/include/rdma/rdma_cma.h";

/// Unnamed parts of C structures: the name here, the structure that holds it, the path to it.
const UNNAMED: &[(&str, &str, &str)] = &[
    ("ibv_gid_global", "union ibv_gid", "global"),
    ("ibv_odp_transport_caps", "struct ibv_odp_caps", "per_transport_caps"),
    ("ibv_async_event_element", "struct ibv_async_event", "element"),
    ("ibv_send_wr_target", "struct ibv_send_wr", "wr"),
    ("ibv_send_wr_rdma", "struct ibv_send_wr", "wr.rdma"),
    ("ibv_send_wr_atomic", "struct ibv_send_wr", "wr.atomic"),
    ("ibv_send_wr_ud", "struct ibv_send_wr", "wr.ud"),
    ("ibv_send_wr_xrc", "struct ibv_send_wr", "qp_type.xrc"),
    ("ibv_send_wr_bind", "struct ibv_send_wr", "bind_mw"),
    ("rdma_cm_event_param", "struct rdma_cm_event", "param"),
];

/// Fields that headers older than release 65 do not have. The structures end there, or in
/// `verbs_context` begin behind them.
const NEWER: &[(&str, &str)] = &[
    ("ibv_port_attr", "active_speed_ex"),
    ("ibv_qp_ex", "wr_flush"),
    ("verbs_context", "free_buf"),
    ("verbs_context", "alloc_buf"),
    ("verbs_context", "dm_export_dmabuf_fd"),
    ("verbs_context", "reg_mr_ex"),
    ("verbs_context", "dealloc_dmah"),
    ("verbs_context", "alloc_dmah"),
];

#[test]
fn layouts_and_values_are_those_of_the_headers() {
    let found = fs::read_to_string(HEADERS).ok().filter(|_| Path::new(CM_HEADERS).exists());
    let Some(header) = found else {
        let missing = "headers are missing: install libibverbs-dev and librdmacm-dev";
        assert!(env::var_os("CI").is_none(), "{missing}");
        eprintln!("SKIPPED: {missing}");
        return;
    };
    let has = |field: &str| {
        header.contains(&format!("{field})")) || header.contains(&format!("{field};"))
    };
    let layouts =
        [device::DEVICE_LAYOUTS, object::OBJECT_LAYOUTS, work::WORK_LAYOUTS, cm::CM_LAYOUTS];
    let (mut probe, mut expected) = (String::new(), String::new());
    for layout in layouts.into_iter().flatten() {
        describe(layout, &has, &mut probe, &mut expected);
    }
    for (name, value) in values::VALUES {
        writeln!(probe, "printf(\"{name} %lld\\n\", (long long){name});").expect("grows");
        writeln!(expected, "{name} {value}").expect("grows");
    }
    assert_eq!(run(&probe), expected);
}

/// Adds the C statements that print one layout, and what they must print. Offsets of
/// `verbs_context` count from its end, where it is anchored.
fn describe(
    layout: &Layout,
    has: &dyn Fn(&str) -> bool,
    probe: &mut String,
    expected: &mut String,
) {
    let name = layout.name;
    let instance = instance(name);
    let known = |field: &str| has(field) || !NEWER.contains(&(name, field));
    let fields: Vec<_> = layout.fields.iter().filter(|(field, _)| known(field)).collect();
    let complete = fields.len() == layout.fields.len();
    if complete {
        writeln!(probe, "printf(\"{name} %zu\\n\", sizeof({instance}));").expect("grows");
        writeln!(expected, "{name} {}", layout.size).expect("grows");
    }
    let from_end = name == "verbs_context";
    for (field, offset) in fields {
        let field = field.trim_start_matches("r#");
        let (base, offset) = if from_end {
            (format!("(char *)(&{instance} + 1)"), *offset as isize - layout.size as isize)
        } else {
            (format!("(char *)&{instance}"), *offset as isize)
        };
        let distance = format!("(char *)&{instance}.{field} - {base}");
        writeln!(probe, "printf(\"{name}.{field} %td\\n\", {distance});").expect("grows");
        writeln!(expected, "{name}.{field} {offset}").expect("grows");
    }
}

/// A C expression of the type that `name` describes.
fn instance(name: &str) -> String {
    let unnamed = UNNAMED.iter().find(|(own, ..)| *own == name);
    match unnamed {
        Some((_, holder, path)) => format!("(({holder} *)room)->{path}"),
        None if name == "ibv_gid" => "(*(union ibv_gid *)room)".into(),
        None => format!("(*(struct {name} *)room)"),
    }
}

fn run(statements: &str) -> String {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let source = folder.path().join("probe.c");
    let program = folder.path().join("probe");
    let text = format!(
        "#include <rdma/rdma_cma.h>\n#include <stdio.h>\nstatic long room[4096];\n\
         int main(void) {{\n{statements}return 0;\n}}\n"
    );
    fs::write(&source, text).expect("the folder is writable");
    compile(&source, &program);
    let output = Command::new(&program).output().expect("the probe starts");
    String::from_utf8(output.stdout).expect("the probe prints ASCII")
}

fn compile(source: &Path, program: &Path) {
    let status = Command::new("cc").arg(source).arg("-o").arg(program).status();
    assert!(status.expect("cc starts").success(), "the probe does not compile");
}
