//! The operations of RUBiS's browsing mix.

/// An operation, and how often the paper's clients did it in 7 minutes (Table II).
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// The paper's name for it.
    pub name: &'static str,
    pub request: Request,
    /// Without vSnoop, and with it.
    pub paper: [u32; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// A page by its name at the site.
    Page(&'static str),
    /// The page before once more.
    Back,
    None,
}

const fn page(name: &'static str, page: &'static str, paper: [u32; 2]) -> Operation {
    Operation { name, request: Request::Page(page), paper }
}

pub const OPERATIONS: [Operation; 12] = [
    page("Home", "home", [359, 396]),
    page("Browse", "browse", [421, 505]),
    page("BrowseCategories", "browse-categories", [288, 357]),
    page("SearchItemsInCategory", "search-in-category", [3498, 4747]),
    page("BrowseRegions", "browse-regions", [128, 141]),
    page("BrowseCategoryInRegion", "browse-categories-in-region", [124, 136]),
    page("SearchItemsInRegion", "search-in-region", [690, 749]),
    page("ViewItem", "view-item", [2892, 3776]),
    page("ViewUserInfo", "view-user", [732, 846]),
    page("ViewBidHistory", "view-bids", [339, 398]),
    Operation { name: "BrowserBackOperation", request: Request::Back, paper: [2750, 3511] },
    Operation { name: "EndOfSession", request: Request::None, paper: [16, 23] },
];

/// Draws an index of [`OPERATIONS`], with the paper's frequencies.
pub fn draw(random: &mut fastrand::Rng) -> usize {
    let total: u32 = OPERATIONS.iter().map(|operation| operation.paper[0]).sum();
    let mut drawn = random.u32(..total);
    for (index, operation) in OPERATIONS.iter().enumerate() {
        match drawn.checked_sub(operation.paper[0]) {
            Some(rest) => drawn = rest,
            None => return index,
        }
    }
    unreachable!("less than the total was drawn")
}

/// The path of a page, with parameters that the site's data have.
pub fn path(page: &str, random: &mut fastrand::Rng) -> String {
    let item = random.u32(1..=5000);
    let (user, category) = (random.u32(1..=2000), random.u32(1..=20));
    let (region, number) = (random.u32(1..=62), random.u32(..3));
    format!("/?op={page}&item={item}&user={user}&category={category}&region={region}&page={number}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_drawn_as_often_as_the_paper_has_them() {
        const DRAWS: u32 = 100_000;
        let mut random = fastrand::Rng::with_seed(7);
        let mut counts = [0; OPERATIONS.len()];
        (0..DRAWS).for_each(|_| counts[draw(&mut random)] += 1);
        for (operation, count) in OPERATIONS.iter().zip(counts) {
            let share = f64::from(operation.paper[0]) / 12237.0;
            let drawn = f64::from(count) / f64::from(DRAWS);
            assert!((drawn - share).abs() < 0.005, "{}: {drawn} of {share}", operation.name);
        }
    }
}
