//! Text in columns.

use std::fmt;

/// Rows of cells, written with as much space between them as the widest needs.
#[derive(Debug, Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
    right: Vec<bool>,
}

impl Table {
    /// A table whose columns are left (`<`) or right (`>`) aligned, one character a column.
    pub fn new(alignment: &str) -> Self {
        Table { rows: Vec::new(), right: alignment.chars().map(|side| side == '>').collect() }
    }

    /// Adds a row, which may be shorter than others.
    pub fn row<T: Into<String>>(&mut self, cells: impl IntoIterator<Item = T>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    fn widths(&self) -> Vec<usize> {
        let count = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let cell = |row: &Vec<String>, i: usize| row.get(i).map_or(0, |text| text.chars().count());
        (0..count).map(|i| self.rows.iter().map(|row| cell(row, i)).max().unwrap_or(0)).collect()
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths = self.widths();
        for row in &self.rows {
            let mut line = String::new();
            for (i, (cell, width)) in row.iter().zip(&widths).enumerate() {
                let separator = if i == 0 { "" } else { "  " };
                line += &match self.right.get(i) {
                    Some(true) => format!("{separator}{cell:>width$}"),
                    _ => format!("{separator}{cell:<width$}"),
                };
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_align_and_lines_end_with_text() {
        let mut table = Table::new("<>");
        table.row(["name", "count", "note"]);
        table.row(["a", "7"]);
        table.row(["longer", "123456", "x"]);
        assert_eq!(table.to_string(), "name     count  note\na            7\nlonger  123456  x\n");
    }
}
