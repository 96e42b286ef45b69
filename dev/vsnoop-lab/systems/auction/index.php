<?php
// A page of the auction site: ?op=OPERATION, with the ids and the page that it needs.  Each page is
// made of a few queries, as those of RUBiS are; the database is another machine.

const PAGE = 20;

mysqli_report(MYSQLI_REPORT_ERROR | MYSQLI_REPORT_STRICT);
$db = new mysqli($_SERVER['DB_HOST'], 'auction', '', 'auction');

function number(string $name): int
{
    return (int) ($_GET[$name] ?? 0);
}

function rows(string $query, int ...$values): array
{
    global $db;
    $statement = $db->prepare($query);
    if ($values) {
        $statement->bind_param(str_repeat('i', count($values)), ...$values);
    }
    $statement->execute();
    return $statement->get_result()->fetch_all(MYSQLI_ASSOC);
}

function table(array $rows): void
{
    echo "<table>\n";
    foreach ($rows as $row) {
        echo '<tr><td>', implode('</td><td>', array_map('htmlspecialchars', $row)), "</td></tr>\n";
    }
    echo "</table>\n";
}

function items(string $where, int ...$values): void
{
    table(rows(
        "select i.id, i.name, i.price, i.ends, count(b.id) bids from items i
         left join bids b on b.item = i.id where $where
         group by i.id order by i.ends limit ? offset ?",
        ...[...$values, PAGE, PAGE * number('page')]
    ));
}

$op = $_GET['op'] ?? 'home';
echo "<html><head><title>Auction: ", htmlspecialchars($op), "</title></head><body>\n";
echo "<h1>", htmlspecialchars($op), "</h1>\n";
switch ($op) {
    case 'home':
    case 'browse':
        echo "<p>Browse all items by category or by region.</p>\n";
        table(rows('select count(*) from items'));
        break;
    case 'browse-categories':
    case 'browse-categories-in-region':
        table(rows('select id, name from categories order by name'));
        break;
    case 'browse-regions':
        table(rows('select id, name from regions order by name'));
        break;
    case 'search-in-category':
        items('i.category = ?', number('category'));
        break;
    case 'search-in-region':
        items(
            'i.category = ? and i.seller in (select id from users where region = ?)',
            number('category'),
            number('region')
        );
        break;
    case 'view-item':
        table(rows(
            'select i.name, i.description, i.price, i.ends, u.nick from items i
             join users u on u.id = i.seller where i.id = ?',
            number('item')
        ));
        table(rows('select max(price), count(*) from bids where item = ?', number('item')));
        break;
    case 'view-user':
        table(rows('select nick, rating, created from users where id = ?', number('user')));
        table(rows(
            'select u.nick, c.rating, c.text from comments c join users u on u.id = c.author
             where c.about = ?',
            number('user')
        ));
        break;
    case 'view-bids':
        table(rows('select name from items where id = ?', number('item')));
        table(rows(
            'select u.nick, b.price, b.made from bids b join users u on u.id = b.user
             where b.item = ? order by b.made desc',
            number('item')
        ));
        break;
    default:
        http_response_code(404);
}
echo "</body></html>\n";
